# Installed targets. xstage::model and what it is made of need nothing but the standard library;
# xstage::xstage is everything that was built.
set(pure_libraries xstage_model xstage_simulate)

get_property(libraries GLOBAL PROPERTY XSTAGE_LIBRARIES)
add_library(xstage_all INTERFACE)
add_library(xstage::xstage ALIAS xstage_all)
set_target_properties(xstage_all PROPERTIES EXPORT_NAME xstage)
target_link_libraries(xstage_all INTERFACE ${libraries})

if(XSTAGE_INSTALL)
  include(CMakePackageConfigHelpers)
  set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/xstage)

  foreach(library IN LISTS libraries)
    if(library IN_LIST pure_libraries)
      install(TARGETS ${library} EXPORT xstageModelTargets ARCHIVE COMPONENT development)
    else()
      install(TARGETS ${library} EXPORT xstageTargets ARCHIVE COMPONENT development)
    endif()
  endforeach()
  install(TARGETS xstage_all EXPORT xstageTargets)
  foreach(set IN ITEMS xstageModelTargets xstageTargets)
    install(EXPORT ${set} NAMESPACE xstage:: DESTINATION ${config_dir} COMPONENT development)
  endforeach()

  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/xstage ${PROJECT_BINARY_DIR}/include/xstage
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.hpp")
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/xstageConfig.cmake.in ${PROJECT_BINARY_DIR}/xstageConfig.cmake
    INSTALL_DESTINATION ${config_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/xstageConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/xstageConfig.cmake ${PROJECT_BINARY_DIR}/xstageConfigVersion.cmake
          DESTINATION ${config_dir} COMPONENT development)
  foreach(data IN ITEMS profiles workloads)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${data})
      install(DIRECTORY ${PROJECT_SOURCE_DIR}/${data} DESTINATION ${CMAKE_INSTALL_DATADIR}/xstage
              COMPONENT tool)
    endif()
  endforeach()
endif()
