# One set of objects, two libraries: libupweave.so shows the public symbols only, libupweave.a has them all.
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
set(private_libraries fmt::fmt hwy::hwy OpenMP::OpenMP_CXX Threads::Threads ${CMAKE_DL_LIBS})

add_library(upweave_objects OBJECT ${sources} ${UPWEAVE_GENERATED}/catalog_files.cpp)
target_include_directories(upweave_objects
  PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${UPWEAVE_GENERATED})
target_link_libraries(upweave_objects PUBLIC ${private_libraries} nlohmann_json::nlohmann_json
                                      PRIVATE upweave_flags)

# The objects' file names, not the target: linking to it would make it part of the installed package.
add_library(upweave_shared SHARED $<TARGET_OBJECTS:upweave_objects>)
add_library(upweave_static STATIC $<TARGET_OBJECTS:upweave_objects>)
add_library(upweave::upweave ALIAS upweave_shared)
add_library(upweave::static ALIAS upweave_static)
set_target_properties(upweave_shared PROPERTIES
  EXPORT_NAME upweave VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
set_target_properties(upweave_static PROPERTIES EXPORT_NAME static)
foreach(library upweave_shared upweave_static)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME upweave LINKER_LANGUAGE CXX)
  target_compile_features(${library} INTERFACE cxx_std_20)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${library} PRIVATE ${private_libraries} $<BUILD_INTERFACE:upweave_flags>)
endforeach()
upweave_export_only(upweave_shared ${PROJECT_SOURCE_DIR}/cmake/upweave.map)

# The library with its inner headers, for the command, the solutions, tests and benchmarks.
add_library(upweave_internal INTERFACE)
target_include_directories(upweave_internal INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${UPWEAVE_GENERATED})
target_link_libraries(upweave_internal INTERFACE
  upweave_static ${private_libraries} nlohmann_json::nlohmann_json upweave_flags)
