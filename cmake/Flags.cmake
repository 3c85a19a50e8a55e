# What every target of the project is compiled with. No -march: the SIMD files choose at run time. No
# -ffast-math: NaN, infinities and the order of sums are part of the promise.
add_library(upweave_flags INTERFACE)
target_compile_options(upweave_flags INTERFACE -Wall -Wextra -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 warns of overlap inside its own std::string (GCC bug 105651).
  target_compile_options(upweave_flags INTERFACE -Wno-restrict)
endif()
if(UPWEAVE_WERROR)
  target_compile_options(upweave_flags INTERFACE -Werror)
endif()
if(UPWEAVE_SANITIZE)
  # GCC's own instrumentation makes it see uninitialised reads that are not there.
  target_compile_options(upweave_flags INTERFACE
    -fsanitize=${UPWEAVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1
    -Wno-maybe-uninitialized)
  target_link_options(upweave_flags INTERFACE -fsanitize=${UPWEAVE_SANITIZE})
endif()

# Gives `target` the linker's version script `map`: what it does not name stays inside.
function(upweave_export_only target map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${map})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
  if(NOT UPWEAVE_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined)
  endif()
endfunction()
