# tests of the expert-parallel layer in src/moe
xstage_add_test(moe_exchange_gpu_test SOURCES moe_exchange_test.cu LIBRARIES xstage::moe)
target_link_options(moe_exchange_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_cuda(moe_exchange_gpu_test "${XSTAGE_GENCODE_HOPPER}")
xstage_add_test(moe_layer_gpu_test SOURCES moe_layer_test.cu LIBRARIES xstage::moe)
target_link_options(moe_layer_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_cuda(moe_layer_gpu_test "${XSTAGE_GENCODE_HOPPER}")
# needs no GPU: rows, shares, sizes, refusals, what is measured
xstage_add_test(moe_layout_test SOURCES moe_layout_test.cpp moe_measure_test.cpp LIBRARIES xstage::moe)
# one process per rank: values, graph replays, many calls, a rank that is killed
add_executable(moe_processes moe_processes.cu peers_harness.cpp)
target_link_libraries(moe_processes PRIVATE xstage::moe GTest::gtest)
target_include_directories(moe_processes PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_options(moe_processes PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_target(moe_processes)
xstage_configure_cuda(moe_processes "${XSTAGE_GENCODE_HOPPER}")
add_test(NAME MoeProcesses COMMAND moe_processes values replays soak kill --ranks 2 --rounds 50)
set_tests_properties(MoeProcesses PROPERTIES SKIP_RETURN_CODE 3 RUN_SERIAL ON LABELS gpu)
