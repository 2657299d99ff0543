# Installs and packages (cmake --install, cpack) the program, the scripts that start it, configurations, completion and
# documentation. The program and the scripts find their files relative to their own location, so any prefix works.
include(GNUInstallDirs)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(shared ${CMAKE_INSTALL_DATAROOTDIR}/megatron_cpp)
set(documentation ${CMAKE_INSTALL_DATAROOTDIR}/doc/megatron-cpp)
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
install(FILES README.md DESTINATION ${documentation})
install(DIRECTORY docs DESTINATION ${documentation} PATTERN "*.1" EXCLUDE)

set(MCPP_PACKAGE_CONTACT "megatron_cpp maintainers <maintainers@megatron-cpp.invalid>" CACHE STRING
    "Maintainer of the Debian package, \"NAME <ADDRESS>\"")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME megatron-cpp)
set(CPACK_PACKAGE_CONTACT ${MCPP_PACKAGE_CONTACT})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Megatron-style pretraining of large language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "One program takes text to a trained, sharded and evaluated checkpoint:
it trains tokenizers, preprocesses text, trains GPT, Llama, Qwen, Gemma and
mixture-of-experts models on one core or on many nodes over MPI, evaluates
checkpoints, generates text, and imports and exports models of Hugging Face
and PyTorch.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dependencies on libraries, determined by dpkg-shlibdeps
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, openssh-client, procps")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/PackageDate.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/DebianFiles.cmake)
include(CPack)
