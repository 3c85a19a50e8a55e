# Installs BUILD, then configures, builds and runs the project beside this file against what was installed.
set(work ${BUILD}/install-test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(status)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${GENERATOR}
    -D CMAKE_PREFIX_PATH=${work}/prefix -D WANTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${work}/build)
foreach(program user_cpp user_cpp_static user_c)
  run(${work}/build/${program})
  if(NOT output MATCHES "upweave ${VERSION}")
    message(FATAL_ERROR "${program} said ${output}")
  endif()
endforeach()
