# cmake -D SOURCE_DIR=... -D OUTPUT=... -P write_commit.cmake: writes the commit of SOURCE_DIR as a
# C++ string literal: 12 digits, "+" for local changes, "unknown" outside of a checkout of its own.
cmake_minimum_required(VERSION 3.22)
set(commit unknown)
find_program(git git)
if(git AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${git} -C ${SOURCE_DIR} rev-parse --short=12 HEAD
                  RESULT_VARIABLE failed OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${git} -C ${SOURCE_DIR} diff --quiet HEAD --
                    RESULT_VARIABLE changed ERROR_QUIET)
    if(changed)
      string(APPEND commit "+")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "\"@commit@\"\n" @ONLY)  # untouched if nothing changed
