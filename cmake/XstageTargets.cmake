# What every target of xstage shares: flags, public headers, linking.
set(XSTAGE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)

function(xstage_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${XSTAGE_WARNINGS}>)
  if(XSTAGE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=undefined;-fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# xstage_add_library(name ALIAS alias SOURCES ...): a static library with the public headers,
# reachable as xstage::alias here and, once installed, elsewhere. Sources may be C++ or CUDA; for
# the latter call xstage_configure_cuda(name gencode) as well. Link header-only dependencies as
# $<BUILD_INTERFACE:...>, so that users of an installed xstage need not have them.
function(xstage_add_library target)
  cmake_parse_arguments(arg "" "ALIAS" "SOURCES" ${ARGN})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(xstage::${arg_ALIAS} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_ALIAS})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  xstage_configure_target(${target})
  set_property(GLOBAL APPEND PROPERTY XSTAGE_LIBRARIES ${target})
endfunction()

# xstage_add_tool(name SOURCES ... LIBRARIES ...): a program at the top of the build folder that
# runs on any machine with the same or a newer libc: everything else is linked statically.
function(xstage_add_tool target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${target} ${arg_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  xstage_configure_target(${target})
  if(NOT XSTAGE_SANITIZE)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  if(XSTAGE_INSTALL)
    install(TARGETS ${target} RUNTIME COMPONENT tool)
  endif()
endfunction()
