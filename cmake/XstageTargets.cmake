# Flags and helpers that every target of xstage shares.
set(XSTAGE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)

function(xstage_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${XSTAGE_WARNINGS}>)
  if(XSTAGE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=undefined;-fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# xstage_add_library(name ALIAS alias SOURCES ...): a static library with the public headers.
function(xstage_add_library target)
  cmake_parse_arguments(arg "" "ALIAS" "SOURCES" ${ARGN})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(xstage::${arg_ALIAS} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_ALIAS})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  xstage_configure_target(${target})
endfunction()
