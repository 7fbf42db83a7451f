# tests of src/peers
xstage_add_test(topology_test SOURCES topology_test.cpp LIBRARIES xstage::peers)
xstage_add_test(launch_test SOURCES launch_test.cpp LIBRARIES xstage::peers)
xstage_add_test(group_test SOURCES group_test.cpp LIBRARIES xstage::peers)
xstage_add_test(peers_test SOURCES peers_test.cpp peers_borrowed_test.cpp LIBRARIES xstage::peers)
