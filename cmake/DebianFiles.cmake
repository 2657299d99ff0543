# Run by cpack on the files of the Debian package: adds those that Debian's policy requires, and compresses the manual
# page.
set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX}/share)
set(documentation ${share}/doc/${CPACK_PACKAGE_NAME})

# compress(<input> <output>): without the name and the time of the file.
function(compress input output)
  execute_process(COMMAND gzip -9nc ${input} OUTPUT_FILE ${output} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(man ${share}/man/man1)
compress(${man}/megatron_cpp.1 ${man}/megatron_cpp.1.gz)
file(REMOVE ${man}/megatron_cpp.1)
foreach(script pretrain launch)
  file(CREATE_LINK megatron_cpp.1.gz ${man}/megatron_cpp-${script}.1.gz SYMBOLIC)
endforeach()

compress(${CMAKE_CURRENT_LIST_DIR}/../CHANGELOG.md ${documentation}/changelog.gz)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH, if it is set
set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
file(WRITE ${documentation}/changelog "megatron-cpp (${version}) unstable; urgency=medium

  * changelog.gz lists the changes.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
compress(${documentation}/changelog ${documentation}/changelog.Debian.gz)
file(REMOVE ${documentation}/changelog)
string(TIMESTAMP year "%Y" UTC)
file(WRITE ${documentation}/copyright "megatron_cpp ${CPACK_PACKAGE_VERSION}

Copyright (C) ${year} the authors of megatron_cpp

The source code states no license. Ask the authors before you distribute it.
")
# Rules for uploads to Debian's archive do not apply.
file(WRITE ${share}/lintian/overrides/${CPACK_PACKAGE_NAME} "megatron-cpp: initial-upload-closes-no-bugs *\n")
