xstage_add_test(samples_test SOURCES samples_test.cpp LIBRARIES xstage::model)
xstage_add_test(attention_order_test SOURCES attention_order_test.cpp LIBRARIES xstage::model)
xstage_add_test(moe_order_test SOURCES moe_order_test.cpp LIBRARIES xstage::model)
xstage_add_test(model_test SOURCES model_test.cpp LIBRARIES xstage::model)
