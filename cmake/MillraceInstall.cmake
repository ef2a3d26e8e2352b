# Install, export and find_package(millrace), for the components that are built.
include(CMakePackageConfigHelpers)

# What find_package(millrace) gets: the rooms that are built, and what each finds and needs.
set(installed ${MILLRACE_BUILDS})
list(REMOVE_ITEM installed command python)
list(TRANSFORM installed PREPEND millrace_ OUTPUT_VARIABLE rooms)
foreach(component ${installed})
  string(APPEND requirements "set(millrace_${component}_needs ${${component}_needs})\n"
    "set(millrace_${component}_finds ${${component}_finds})\n")
endforeach()
if(training IN_LIST MILLRACE_BUILDS)
  list(APPEND rooms millrace_all)
endif()
install(TARGETS ${rooms} EXPORT millrace_targets)
if(command IN_LIST MILLRACE_BUILDS)
  install(TARGETS millrace_cli)
endif()
install(DIRECTORY include/millrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT millrace_targets NAMESPACE millrace:: FILE millrace-targets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
configure_package_config_file(cmake/millrace-config.cmake.in millrace-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
write_basic_package_version_file(millrace-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/millrace-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/millrace-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
