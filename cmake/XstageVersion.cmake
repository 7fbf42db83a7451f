# The version comes from project(); the commit is looked up at every build, so that a result file
# never names an older state than the one that wrote it.
configure_file(${PROJECT_SOURCE_DIR}/include/xstage/version.hpp.in
               ${PROJECT_BINARY_DIR}/include/xstage/version.hpp @ONLY)

# xstage_embed_version(target): version.hpp for it and its users, and the definition of its functions.
function(xstage_embed_version target)
  set(commit_file ${PROJECT_BINARY_DIR}/generated/xstage_commit.inc)
  set(write_commit ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${commit_file}
                   -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake)
  execute_process(COMMAND ${write_commit})  # for tools that read the sources without a build
  add_custom_target(xstage_commit COMMAND ${write_commit} BYPRODUCTS ${commit_file} VERBATIM
                    COMMENT "Looking up the commit")
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/model/version.cpp)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    PRIVATE ${PROJECT_BINARY_DIR}/generated)
  add_dependencies(${target} xstage_commit)
endfunction()
