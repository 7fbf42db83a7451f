xstage_add_test(samples_test SOURCES samples_test.cpp LIBRARIES xstage::model)
