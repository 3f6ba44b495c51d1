# What is installed, twice: "python" is the part of the wheel, inside of the package but for the command of optimum;
# "development" is what `cmake --install` puts below a prefix. Both can be moved: all paths in them are relative.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(config "${CMAKE_CURRENT_BINARY_DIR}/edgekitConfig.cmake")
set(version "${CMAKE_CURRENT_BINARY_DIR}/edgekitConfigVersion.cmake")
file(WRITE "${config}" "include(\"\${CMAKE_CURRENT_LIST_DIR}/edgekitTargets.cmake\")\n")
write_basic_package_version_file("${version}" VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)

# component: as in CMake; default: EXCLUDE_FROM_ALL or nothing; the rest: folders of the library, of archives
# (import libraries of Windows), of the header and of what describes them.
function(edgekit_install component default library archive header description)
  install(TARGETS edgekit_core EXPORT edgekit_${component}
    LIBRARY DESTINATION "${library}" COMPONENT ${component} ${default}
    # Windows installs a DLL as RUNTIME.
    RUNTIME DESTINATION "${library}" COMPONENT ${component} ${default}
    ARCHIVE DESTINATION "${archive}" COMPONENT ${component} ${default}
    INCLUDES DESTINATION "${header}"
  )
  install(FILES "${flashload_native}/include/edgekit.h" DESTINATION "${header}" COMPONENT ${component} ${default})
  install(EXPORT edgekit_${component} FILE edgekitTargets.cmake NAMESPACE edgekit::
    DESTINATION "${description}/cmake/edgekit" COMPONENT ${component} ${default})
  install(FILES "${config}" "${version}" DESTINATION "${description}/cmake/edgekit"
    COMPONENT ${component} ${default})
  if(NOT MSVC)
    file(RELATIVE_PATH EDGEKIT_LIBRARIES "/${description}/pkgconfig" "/${library}")
    file(RELATIVE_PATH EDGEKIT_HEADERS "/${description}/pkgconfig" "/${header}")
    set(pc "${CMAKE_CURRENT_BINARY_DIR}/${component}/edgekit.pc")
    configure_file("${flashload_native}/edgekit.pc.in" "${pc}" @ONLY)
    install(FILES "${pc}" DESTINATION "${description}/pkgconfig" COMPONENT ${component} ${default})
  endif()
endfunction()

# The library goes beside the Python modules that load it.
edgekit_install(python EXCLUDE_FROM_ALL edgekit/flashload edgekit/lib edgekit/include edgekit/lib)

# Where optimum looks for commands of other packages.
install(FILES "${CMAKE_CURRENT_SOURCE_DIR}/tools/optimum/register_edgekit.py" DESTINATION optimum/commands/register
  COMPONENT python EXCLUDE_FROM_ALL)

set(runtime "${CMAKE_INSTALL_LIBDIR}")
if(WIN32)
  set(runtime "${CMAKE_INSTALL_BINDIR}")
endif()
edgekit_install(development "" "${runtime}" "${CMAKE_INSTALL_LIBDIR}" "${CMAKE_INSTALL_INCLUDEDIR}"
  "${CMAKE_INSTALL_LIBDIR}")
