# The vocabulary of kernels. The binaries run on any machine with a driver: everything else is
# linked statically. One case at a time has the GPU.
foreach(name IN ITEMS outbox outbox_decisions store_kinds memory_model wait)
  set(target ${name}_gpu_test)
  add_executable(${target} ${name}_test.cu ${PROJECT_SOURCE_DIR}/src/probe/tensor_map.cpp)
  target_link_libraries(${target} PRIVATE xstage::model GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  xstage_configure_target(${target})
  xstage_configure_cuda(${target} "-gencode=arch=compute_90,code=sm_90")
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
                       PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
endforeach()

# Fan-out of the probe's links.
add_executable(fan_out_gpu_test fan_out_test.cpp)
target_link_libraries(fan_out_gpu_test PRIVATE xstage::probe GTest::gtest_main)
target_include_directories(fan_out_gpu_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(fan_out_gpu_test SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_options(fan_out_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_target(fan_out_gpu_test)
gtest_discover_tests(fan_out_gpu_test DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
                     PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
