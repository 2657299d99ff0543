# mcpp_add_commit(<target>): adds the source of mcpp::build_commit(), which megatron_cpp/setup/version.h declares: the Git
# commit that the program is built from, followed by ", modified" if tracked files differ from it. Without Git, or if
# the sources are not a clone, it returns "". Run as a script at each build, this file writes that source if it changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "")
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix --short=12 HEAD
                    OUTPUT_VARIABLE lines ERROR_QUIET RESULT_VARIABLE code)
    # The prefix is empty unless a folder above the sources is the clone.
    if(code EQUAL 0 AND lines MATCHES "^\n([0-9a-f]+)\n$")
      set(commit ${CMAKE_MATCH_1})
      execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
                      OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        string(APPEND commit ", modified")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#include \"megatron_cpp/setup/version.h\"\n\nnamespace mcpp {\n\n\
std::string_view build_commit() {\n  return \"${commit}\";\n}\n\n}  // namespace mcpp\n")
  return()
endif()

set(MCPP_COMMIT_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(mcpp_add_commit target)
  set(output ${CMAKE_BINARY_DIR}/commit/commit.cpp)
  add_custom_target(${target}_commit BYPRODUCTS ${output} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${output} -P ${MCPP_COMMIT_SCRIPT})
  target_sources(${target} PRIVATE ${output})
  add_dependencies(${target} ${target}_commit)
endfunction()
