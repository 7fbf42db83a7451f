# tests of src/io and src/cli
xstage_add_test(files_test SOURCES files_test.cpp LIBRARIES xstage::io)
xstage_add_test(text_test SOURCES text_test.cpp LIBRARIES xstage::io)

if(TARGET xstage)
  find_package(nlohmann_json 3.9 REQUIRED)
  xstage_add_test(cli_test SOURCES cli/cli_test.cpp LIBRARIES xstage::io nlohmann_json::nlohmann_json)
  target_compile_definitions(cli_test PRIVATE XSTAGE_TOOL_PATH="$<TARGET_FILE:xstage>")
  add_dependencies(cli_test xstage)
  xstage_add_test(plan_cli_test SOURCES cli/plan_cli_test.cpp LIBRARIES xstage::io nlohmann_json::nlohmann_json)
  target_compile_definitions(plan_cli_test PRIVATE XSTAGE_TOOL_PATH="$<TARGET_FILE:xstage>")
  add_dependencies(plan_cli_test xstage)
  find_package(fmt REQUIRED)
  set(cli_folder ${PROJECT_SOURCE_DIR}/src/cli)
  xstage_add_test(bench_exchange_test
    SOURCES cli/bench_exchange_test.cpp ${cli_folder}/exchange_view.cpp ${cli_folder}/exchange_cases.cpp
            ${cli_folder}/console.cpp ${cli_folder}/values.cpp
    LIBRARIES xstage::io xstage::model fmt::fmt-header-only nlohmann_json::nlohmann_json)
  target_compile_definitions(bench_exchange_test PRIVATE XSTAGE_TOOL_PATH="$<TARGET_FILE:xstage>")
  add_dependencies(bench_exchange_test xstage)
  xstage_add_test(bench_attention_test SOURCES cli/bench_attention_test.cpp LIBRARIES xstage::io nlohmann_json::nlohmann_json)
  target_compile_definitions(bench_attention_test PRIVATE XSTAGE_TOOL_PATH="$<TARGET_FILE:xstage>")
  add_dependencies(bench_attention_test xstage)
endif()

# Fuzz targets. With clang, XSTAGE_FUZZ=ON builds them for libFuzzer; otherwise ctest runs a fixed
# number of deterministic mutations of the shipped files.
option(XSTAGE_FUZZ "Build the fuzz targets for libFuzzer (needs clang)" OFF)
set(fuzz_corpus_samples ${PROJECT_SOURCE_DIR}/tests/data/h200-nv18-aggregates.csv
    ${PROJECT_SOURCE_DIR}/tests/data/h200-host-pcie5-aggregates.csv)
set(fuzz_corpus_link ${PROJECT_SOURCE_DIR}/tests/cli/link.json)
foreach(target IN ITEMS samples link)
  if(XSTAGE_FUZZ)
    add_executable(fuzz_${target} fuzz/fuzz_${target}.cpp)
    target_compile_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(fuzz_${target} fuzz/fuzz_${target}.cpp fuzz/mutate_main.cpp)
    add_test(NAME fuzz_${target} COMMAND fuzz_${target} 20000 1 ${fuzz_corpus_${target}})
  endif()
  target_link_libraries(fuzz_${target} PRIVATE xstage::io)
  xstage_configure_target(fuzz_${target})
endforeach()
xstage_add_test(plan_test SOURCES plan_test.cpp LIBRARIES xstage::io xstage::model)
find_package(nlohmann_json 3.9 REQUIRED)
target_link_libraries(plan_test PRIVATE nlohmann_json::nlohmann_json)
