# What find_package(upweave) finds after an installation: upweave::upweave, and upweave::static where the
# libraries that the static one needs are there too.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/upweave)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/upweave DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS upweave_shared EXPORT upweave)
install(TARGETS upweave_static EXPORT upweave-static)
install(EXPORT upweave NAMESPACE upweave:: FILE upweave-targets.cmake DESTINATION ${package_dir})
install(EXPORT upweave-static NAMESPACE upweave:: FILE upweave-static-targets.cmake
        DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/upweave-config.cmake.in
  ${PROJECT_BINARY_DIR}/upweave-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/upweave-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/upweave-config.cmake ${PROJECT_BINARY_DIR}/upweave-config-version.cmake
        DESTINATION ${package_dir})
