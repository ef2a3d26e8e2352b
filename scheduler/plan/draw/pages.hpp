// The files of draw/pages, which cmake/MillraceEmbed.cmake embeds: style and script of the HTML
// pages, without external resources.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace millrace {

std::span<const std::uint8_t> schedule_page_style();
std::span<const std::uint8_t> schedule_page_body();
/// Draws what draw_html puts into the element `data`.
std::span<const std::uint8_t> schedule_page_script();
std::span<const std::uint8_t> gallery_style();

namespace picture {

inline std::string text_of(std::span<const std::uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

/// From the doctype to the opening body. The title is escaped.
inline std::string page_head(const std::string& title, std::span<const std::uint8_t> style) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
         "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<style>\n" +
         text_of(style) + "</style></head><body>\n";
}

}  // namespace picture
}  // namespace millrace
