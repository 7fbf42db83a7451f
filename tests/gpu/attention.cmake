# tests of src/attention
xstage_add_test(attention_gpu_test SOURCES attention_test.cu LIBRARIES xstage::attention)
xstage_configure_cuda(attention_gpu_test "${XSTAGE_GENCODE_HOPPER}")
# needs no GPU: what is refused, and the plan of a call
xstage_add_test(attention_problem_test SOURCES attention_problem_test.cpp LIBRARIES xstage::attention)
xstage_add_test(exchange_problem_test SOURCES exchange_problem_test.cpp LIBRARIES xstage::attention)
xstage_add_test(exchange_trace_test SOURCES exchange_trace_test.cpp LIBRARIES xstage::attention)
# the serial exchange: its plans need no GPU
xstage_add_test(push_plan_test SOURCES push_plan_test.cpp LIBRARIES xstage::attention)
xstage_add_test(push_gpu_test SOURCES push_test.cu LIBRARIES xstage::attention xstage::peers)
xstage_configure_cuda(push_gpu_test "${XSTAGE_GENCODE_HOPPER}")
target_link_options(push_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
# fused and serial exchange, ranks that share a GPU
xstage_add_test(ulysses_gpu_test SOURCES ulysses_test.cu LIBRARIES xstage::attention xstage::peers)
xstage_configure_cuda(ulysses_gpu_test "${XSTAGE_GENCODE_HOPPER}")
target_link_options(ulysses_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
