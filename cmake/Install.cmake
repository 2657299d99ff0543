# Installs and packages (cmake --install, cpack) the program, the scripts that start it, configurations, completion and
# documentation. The program and the scripts find their files relative to their own location, so any prefix works.
include(GNUInstallDirs)
set(shared ${CMAKE_INSTALL_DATAROOTDIR}/megatron_cpp)
install(TARGETS megatron_cpp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(PROGRAMS scripts/pretrain.sh scripts/launch.sh scripts/slurm_pretrain.sbatch DESTINATION ${shared}/scripts)
install(FILES scripts/lib/attempt.sh scripts/lib/common.sh scripts/lib/hosts.sh DESTINATION ${shared}/scripts/lib)
install(DIRECTORY configs DESTINATION ${shared} FILES_MATCHING PATTERN "*.toml")
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/links)
foreach(script pretrain launch)
  file(CREATE_LINK ../share/megatron_cpp/scripts/${script}.sh ${CMAKE_BINARY_DIR}/links/megatron_cpp-${script} SYMBOLIC)
  install(FILES ${CMAKE_BINARY_DIR}/links/megatron_cpp-${script} DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()
install(FILES scripts/completion/megatron_cpp.bash RENAME megatron_cpp
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
install(FILES scripts/completion/megatron_cpp.zsh RENAME _megatron_cpp
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)
install(FILES docs/megatron_cpp.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "*.1" EXCLUDE)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME megatron-cpp)
set(CPACK_PACKAGE_CONTACT "the authors of megatron_cpp")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Megatron-style pretraining of large language models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dependencies on libraries, determined by dpkg-shlibdeps
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, openssh-client, procps")
include(CPack)
