# peers_gpu: peer memory, waits and barriers on a GPU. Without one ctest shows its cases as skipped.
add_executable(peers_gpu peers_main.cpp peers_harness.cpp peers_local.cu peers_processes.cu
               peers_throughput.cu wait_registers.cu)
target_link_libraries(peers_gpu PRIVATE xstage::peers xstage::probe)
target_include_directories(peers_gpu PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_options(peers_gpu PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_target(peers_gpu)
xstage_configure_cuda(peers_gpu "${XSTAGE_GENCODE_PORTABLE}")

# For peers_torch.py.
add_library(xstage_peers_test SHARED peers_capi.cu)
target_link_libraries(xstage_peers_test PRIVATE xstage::peers)
target_include_directories(xstage_peers_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_options(xstage_peers_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_target(xstage_peers_test)
xstage_configure_cuda(xstage_peers_test "${XSTAGE_GENCODE_PORTABLE}")

foreach(case IN ITEMS machine exchange graph delay deadline abort side emulated adopted)
  add_test(NAME PeersGpu.${case} COMMAND peers_gpu ${case} --ranks 1,2,3,4,8 --rounds 50)
endforeach()
foreach(case IN ITEMS p-exchange p-graph p-masks p-kill p-stop p-doctor)
  add_test(NAME PeersGpu.${case} COMMAND peers_gpu ${case} --ranks 2,3 --rounds 10)
endforeach()
add_test(NAME PeersGpu.cycles COMMAND peers_gpu cycles p-cycles --ranks 2 --rounds 50)
set(peers_gpu_tests machine exchange graph delay deadline abort side emulated adopted p-exchange
                    p-graph p-masks p-kill p-stop p-doctor cycles)
list(TRANSFORM peers_gpu_tests PREPEND PeersGpu.)
set_tests_properties(${peers_gpu_tests} PROPERTIES SKIP_RETURN_CODE 3 RUN_SERIAL ON LABELS gpu)

# What waits and barriers cost in registers, from the compiled kernels.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME resource_usage.peers
         COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/resource_usage.py
                 --budget ${CMAKE_CURRENT_SOURCE_DIR}/peers_budget.txt
                 --cuobjdump=${XSTAGE_CUOBJDUMP} --nvcc ${CMAKE_CUDA_COMPILER} $<TARGET_FILE:peers_gpu>)
set_tests_properties(resource_usage.peers PROPERTIES SKIP_RETURN_CODE 77)
