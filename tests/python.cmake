# The Python package's tests, by pytest; without the package one test that says why it is missing.
if(XSTAGE_PYTHON)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  add_test(NAME python.package COMMAND ${Python_EXECUTABLE} -m pytest -q -rs -p no:cacheprovider
    ${PROJECT_SOURCE_DIR}/tests/python)
  set_tests_properties(python.package PROPERTIES ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python")
else()
  add_test(NAME python.package COMMAND ${CMAKE_COMMAND} -E echo
    "NOT TESTED: this build has no Python package (XSTAGE_PYTHON=OFF: no Python headers, nanobind or pytest)")
  set_tests_properties(python.package PROPERTIES SKIP_REGULAR_EXPRESSION "NOT TESTED")
endif()
