# tests of src/attention
xstage_add_test(attention_gpu_test SOURCES attention_test.cu LIBRARIES xstage::attention)
xstage_configure_cuda(attention_gpu_test "${XSTAGE_GENCODE_HOPPER}")
# needs no GPU: what is refused, and the plan of a call
xstage_add_test(attention_problem_test SOURCES attention_problem_test.cpp LIBRARIES xstage::attention)
xstage_add_test(exchange_problem_test SOURCES exchange_problem_test.cpp LIBRARIES xstage::attention)
