# One library per room: millrace_room(NAME FOLDER [COMPUTES] [COLD FOLDERS...] [EXCEPT FOLDERS...] [INSIDE FOLDER]
# [FINDS PACKAGES...] PUBLIC deps... PRIVATE deps...).
# COLD: folders of the room that no step and no search waits for. -O1 compiles them in two thirds of the time.
# COMPUTES: compiled for MILLRACE_ARCH, because matrix products want the widest vectors.
# EXCEPT: folders of the room that are libraries of their own. INSIDE: the room of which this is such a folder.
# FINDS: packages that a program must find to link the installed room, besides fmt, which every room has.

add_library(millrace_flags INTERFACE)
target_compile_options(millrace_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  # GCC 12 warns falsely about string concatenation (its bugs 105329 and 105651), and about the undefined
  # operand of its own AVX-512 intrinsics (105593). GCC 13 and 14 take any reference that a function of
  # temporaries returns for one of them.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds
                            -Wno-maybe-uninitialized -Wno-uninitialized>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
# Private headers of the core, which has no source: "core/sum_tree.hpp".
target_include_directories(millrace_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(MILLRACE_WERROR)
  target_compile_options(millrace_flags INTERFACE -Werror)
endif()
if(MILLRACE_SANITIZE)
  # TBB's own header downcasts in a way that -fsanitize=vptr reports; that one check is excluded.
  add_compile_options(-fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MILLRACE_SANITIZE})
  if(MILLRACE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=vptr)
  endif()
  if(MILLRACE_SANITIZE MATCHES address)
    add_compile_definitions(MILLRACE_GUARD_MARGINS)  # see core/tensor.hpp
  endif()
endif()

if(MILLRACE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all -fno-sanitize=vptr)
  add_link_options(-fsanitize=address,undefined)
endif()

# millrace_components(NAME...): MILLRACE_BUILDS becomes these components and all that they need.
function(millrace_components)
  set(waiting ${ARGN})
  while(waiting)
    list(POP_FRONT waiting component)
    if(NOT component IN_LIST MILLRACE_KNOWN)
      list(JOIN MILLRACE_KNOWN ", " known)
      message(FATAL_ERROR "MILLRACE_COMPONENTS names '${component}'; known are ${known}")
    endif()
    list(APPEND builds ${component})
    list(APPEND waiting ${${component}_needs})
  endwhile()
  list(REMOVE_DUPLICATES builds)
  set(MILLRACE_BUILDS ${builds} PARENT_SCOPE)
endfunction()

function(millrace_headers target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
endfunction()

function(millrace_core)
  add_library(millrace_core INTERFACE)
  add_library(millrace::core ALIAS millrace_core)
  target_include_directories(millrace_core INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(millrace_core INTERFACE cxx_std_20)
  set_target_properties(millrace_core PROPERTIES EXPORT_NAME core)
endfunction()

# Installed libraries find each other under any prefix.
function(millrace_finds_libraries target)
  get_target_property(kind ${target} TYPE)
  set(from ${CMAKE_INSTALL_FULL_LIBDIR})
  if(kind STREQUAL EXECUTABLE)
    set(from ${CMAKE_INSTALL_FULL_BINDIR})
  endif()
  file(RELATIVE_PATH libraries ${from} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries}")
endfunction()

function(millrace_room name folder)
  cmake_parse_arguments(ROOM "COMPUTES" "INSIDE" "COLD;EXCEPT;FINDS;PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  foreach(other ${ROOM_EXCEPT})
    list(FILTER sources EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${other}/")
  endforeach()
  set(${name}_finds fmt ${ROOM_FINDS} PARENT_SCOPE)
  if(NOT sources)
    file(WRITE ${PROJECT_BINARY_DIR}/empty.cpp "")
    set(sources ${PROJECT_BINARY_DIR}/empty.cpp)
  endif()
  foreach(part ${ROOM_COLD})
    set(of_part ${sources})
    list(FILTER of_part INCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${folder}/${part}/")
    list(FILTER sources EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${folder}/${part}/")
    list(APPEND cold ${of_part})
  endforeach()
  # A room's private headers are included as "plan/clock.hpp", from the folder above.
  if(ROOM_INSIDE)
    set(folder ${ROOM_INSIDE})
  endif()
  get_filename_component(above ${PROJECT_SOURCE_DIR}/${folder} DIRECTORY)

  add_library(millrace_${name} ${sources})
  add_library(millrace::${name} ALIAS millrace_${name})
  set(parts millrace_${name})
  if(cold)
    add_library(millrace_${name}_cold OBJECT ${cold})
    target_compile_options(millrace_${name}_cold PRIVATE $<$<CONFIG:Release>:-O1>)
    target_sources(millrace_${name} PRIVATE $<TARGET_OBJECTS:millrace_${name}_cold>)
    list(APPEND parts millrace_${name}_cold)
  endif()
  foreach(part ${parts})
    millrace_headers(${part})
    target_include_directories(${part} PRIVATE ${above})
    target_link_libraries(${part}
      PUBLIC ${ROOM_PUBLIC} PRIVATE fmt::fmt ${ROOM_PRIVATE} $<BUILD_INTERFACE:millrace_flags>)
    # Saves a third of a build. The dev preset goes without, so that every file includes what it uses.
    target_precompile_headers(${part} PRIVATE
      <algorithm> <chrono> <functional> <map> <memory> <optional> <span> <sstream> <string> <vector> <fmt/format.h>)
    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    if(ROOM_COMPUTES AND MILLRACE_ARCH)
      target_compile_options(${part} PRIVATE -march=${MILLRACE_ARCH})
    endif()
  endforeach()
  set_target_properties(millrace_${name} PROPERTIES EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  millrace_finds_libraries(millrace_${name})
endfunction()
