# tests of src/io and src/cli
