# tests of the grouped GEMM in src/moe
xstage_add_test(moe_gemm_gpu_test SOURCES moe_gemm_test.cu LIBRARIES xstage::moe_gemm)
xstage_configure_cuda(moe_gemm_gpu_test "${XSTAGE_GENCODE_HOPPER}")
# needs no GPU: what is refused
xstage_add_test(moe_gemm_problem_test SOURCES moe_gemm_problem_test.cpp LIBRARIES xstage::moe_gemm)
# neither: the order of the tasks
xstage_add_test(moe_gemm_order_test SOURCES moe_gemm_order_test.cpp LIBRARIES xstage::moe_gemm)
