# tests of src/peers
xstage_add_test(topology_test SOURCES topology_test.cpp LIBRARIES xstage::peers)
