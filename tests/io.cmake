# tests of src/io and src/cli
xstage_add_test(files_test SOURCES files_test.cpp LIBRARIES xstage::io)
