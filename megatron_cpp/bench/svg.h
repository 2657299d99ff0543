// Elements of charts in SVG.
#pragma once
#include <string>

namespace mcpp {

/// Returns a text element at (x, y); `anchor` is start, middle or end.
std::string svg_text(double x, double y, const char* anchor, const std::string& text);
/// Returns a line element along the commands of `path`. `style` has additional attributes.
std::string svg_line(const std::string& path, const std::string& color, const std::string& style = "");
/// Returns a document of this size with a white background.
std::string svg_document(double width, double height, const std::string& content);

}  // namespace mcpp
