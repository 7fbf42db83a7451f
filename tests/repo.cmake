# tests of the repository itself: public headers, package, kernel resources

# Each public header compiles alone and without CUDA's include folder.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/include/xstage/*.hpp)
set(header_sources)
foreach(header IN LISTS headers ITEMS xstage/version.hpp)
  string(REGEX REPLACE "[/.]" "_" name ${header})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
  list(APPEND header_sources ${source})
endforeach()
add_library(public_headers_alone OBJECT ${header_sources})
target_link_libraries(public_headers_alone PRIVATE xstage::model)
xstage_configure_target(public_headers_alone)

# The package as its users see it: two projects of their own.
set(consumer ${CMAKE_COMMAND}
  -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D BUILD_DIR=${PROJECT_BINARY_DIR}
  -D CXX_COMPILER=${CMAKE_CXX_COMPILER} -D VERSION=${PROJECT_VERSION} -D SANITIZE=${XSTAGE_SANITIZE}
  -D CUDA=${XSTAGE_CUDA} -D CUDA_COMPILER=${CMAKE_CUDA_COMPILER} -D GENERATOR=${CMAKE_GENERATOR})
foreach(way IN ITEMS installed subdirectory)
  add_test(NAME consumer.${way}
           COMMAND ${consumer} -D WAY=${way} -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
  set_tests_properties(consumer.${way} PROPERTIES TIMEOUT 600)
endforeach()

# What the compiler made of our kernels, against tests/gpu/resource_budget.txt.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME resource_usage.self_check
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/resource_usage_test.py)

# The scripts that run on GPUs, with stubs for the driver and the programs.
add_test(NAME gpu_scripts
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/gpu_all_test.py)

if(XSTAGE_CUDA)
  set(XSTAGE_CUOBJDUMP "" CACHE FILEPATH "cuobjdump, if it is neither on PATH nor beside nvcc")
  get_property(libraries GLOBAL PROPERTY XSTAGE_LIBRARIES)
  set(files)
  foreach(library IN LISTS libraries)
    list(APPEND files $<TARGET_FILE:${library}>)
  endforeach()
  add_test(NAME resource_usage.kernels
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/resource_usage.py
                   --budget ${CMAKE_CURRENT_SOURCE_DIR}/gpu/resource_budget.txt
                   --cuobjdump=${XSTAGE_CUOBJDUMP} --nvcc ${CMAKE_CUDA_COMPILER} ${files})
  set_tests_properties(resource_usage.kernels PROPERTIES SKIP_RETURN_CODE 77)
endif()
