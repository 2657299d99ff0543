# mcpp_embed(<target> <function> <file> ...): defines std::span<const EmbeddedFile> mcpp::<function>(), which a header
# of the library declares. It returns the contents of these files in this order. Run as a script, this file writes the
# source of the function.
if(CMAKE_SCRIPT_MODE_FILE)
  set(arrays "")
  set(rows "")
  set(index 0)
  string(REPLACE "|" ";" FILES "${FILES}")
  foreach(file IN LISTS FILES)
    file(READ ${file} content HEX)
    string(REGEX REPLACE "(..)" "'\\\\x\\1'," content "${content}")
    string(REGEX REPLACE "(('....',){24})" "\\1\n    " content "${content}")
    get_filename_component(name ${file} NAME)
    string(APPEND arrays "constexpr char kFile${index}[] = {\n    ${content}'\\0'};\n")
    string(APPEND rows "    EmbeddedFile{\"${name}\", {kFile${index}, sizeof(kFile${index}) - 1}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  file(WRITE ${OUTPUT} "#include <array>\n#include <span>\n\n#include \"base/program/program_files.h\"\n\nnamespace mcpp {\nnamespace {\n\n"
    "${arrays}constexpr std::array kFiles{\n${rows}};\n\n}  // namespace\n\n"
    "std::span<const EmbeddedFile> ${FUNCTION}();\nstd::span<const EmbeddedFile> ${FUNCTION}() {\n  return kFiles;\n}\n\n}  // namespace mcpp\n")
  return()
endif()

set(MCPP_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(mcpp_embed target function)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  set(output ${CMAKE_BINARY_DIR}/embedded/${function}.cpp)
  list(JOIN files "|" list)  # semicolons would split the argument
  add_custom_command(OUTPUT ${output} DEPENDS ${files} ${MCPP_EMBED_SCRIPT} VERBATIM
    COMMAND ${CMAKE_COMMAND} "-DFILES=${list}" -DFUNCTION=${function} -DOUTPUT=${output} -P ${MCPP_EMBED_SCRIPT})
  target_sources(${target} PRIVATE ${output})
endfunction()
