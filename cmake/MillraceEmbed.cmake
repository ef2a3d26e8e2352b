# Embeds a file as a byte array, at configure time: the definition of a function that a header declares.
function(millrace_embed target header file function)
  set(file ${PROJECT_SOURCE_DIR}/${file})
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  get_filename_component(name ${file} NAME)
  set(source ${PROJECT_BINARY_DIR}/embedded/${function}.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Bytes of @name@, written by cmake/MillraceEmbed.cmake.
#include <array>
#include \"@header@\"

namespace millrace {
namespace {

constexpr std::uint8_t kBytes[] = {
@bytes@};

}  // namespace

std::span<const std::uint8_t> @function@() {
  return kBytes;
}

}  // namespace millrace
")
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
