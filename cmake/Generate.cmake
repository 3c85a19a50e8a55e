# Small files made at configure time, so that each fact has one home:
#   operations.inc     one UPWEAVE_OPS(stem) for each src/graph/ops/<stem>.cpp
#   operation_ids.inc  one UPWEAVE_OP(id) for each Op::id that stands in these files
#   catalog_files.cpp  the texts of pipelines/*.upw
#   upweave_version.h  the project's version
set(UPWEAVE_GENERATED ${PROJECT_BINARY_DIR}/generated)

# Leaves the file's time alone when its content is the same already.
function(upweave_write path content)
  set(old "")
  if(EXISTS ${path})
    file(READ ${path} old)
  endif()
  if(NOT old STREQUAL content)
    file(WRITE ${path} "${content}")
  endif()
endfunction()

set(text "")
set(ids "")
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/graph/ops/*.cpp)
foreach(source ${sources})
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  get_filename_component(stem ${source} NAME_WE)
  string(APPEND text "UPWEAVE_OPS(${stem})\n")
  file(STRINGS ${source} lines REGEX "Op::k")
  string(REGEX MATCHALL "Op::k[A-Za-z0-9]+" found "${lines}")
  list(APPEND ids ${found})
endforeach()
upweave_write(${UPWEAVE_GENERATED}/operations.inc "${text}")
list(SORT ids)
list(REMOVE_DUPLICATES ids)
list(TRANSFORM ids REPLACE "Op::(.*)" "UPWEAVE_OP(\\1)\n")
list(JOIN ids "" text)
upweave_write(${UPWEAVE_GENERATED}/operation_ids.inc "${text}")

set(text "#include \"api/catalog_files.h\"\n\nnamespace upweave {\n
extern const std::pair<std::string_view, std::string_view> kCatalogFiles[] = {\n")
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pipelines/*.upw)
list(SORT sources COMPARE NATURAL)  # kernelbench-100 behind 96
list(LENGTH sources count)
foreach(source ${sources})
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  get_filename_component(slug ${source} NAME_WE)
  file(READ ${source} content)
  string(APPEND text "    {\"${slug}\", R\"upw(${content})upw\"},\n")
endforeach()
string(APPEND text "    {},  // so that it is never empty\n};
extern const std::size_t kCatalogFileCount = ${count};\n\n}  // namespace upweave\n")
upweave_write(${UPWEAVE_GENERATED}/catalog_files.cpp "${text}")

upweave_write(${UPWEAVE_GENERATED}/upweave_version.h "#pragma once
#define UPWEAVE_VERSION \"${PROJECT_VERSION}\"
#define UPWEAVE_VERSION_MAJOR ${PROJECT_VERSION_MAJOR}
#define UPWEAVE_VERSION_MINOR ${PROJECT_VERSION_MINOR}
#define UPWEAVE_VERSION_PATCH ${PROJECT_VERSION_PATCH}
")
