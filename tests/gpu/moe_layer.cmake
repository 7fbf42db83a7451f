# tests of the expert-parallel layer in src/moe
xstage_add_test(moe_exchange_gpu_test SOURCES moe_exchange_test.cu LIBRARIES xstage::moe)
target_link_options(moe_exchange_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_cuda(moe_exchange_gpu_test "${XSTAGE_GENCODE_HOPPER}")
xstage_add_test(moe_layer_gpu_test SOURCES moe_layer_test.cu LIBRARIES xstage::moe)
target_link_options(moe_layer_gpu_test PRIVATE -static-libstdc++ -static-libgcc)
xstage_configure_cuda(moe_layer_gpu_test "${XSTAGE_GENCODE_HOPPER}")
# needs no GPU: rows, shares, sizes, refusals
xstage_add_test(moe_layout_test SOURCES moe_layout_test.cpp LIBRARIES xstage::moe)
