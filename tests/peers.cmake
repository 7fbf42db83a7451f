# tests of src/peers
