# Install, export and find_package(millrace).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS millrace_core millrace_plan millrace_stages millrace_transport millrace_run millrace_training millrace_all
  EXPORT millrace_targets)
install(TARGETS millrace_cli)
install(DIRECTORY include/millrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT millrace_targets NAMESPACE millrace:: FILE millrace-targets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
configure_package_config_file(cmake/millrace-config.cmake.in millrace-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
write_basic_package_version_file(millrace-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/millrace-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/millrace-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
