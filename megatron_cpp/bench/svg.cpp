#include "megatron_cpp/bench/svg.h"

#include "base/html.h"
#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {

std::string svg_text(double x, double y, const char* anchor, const std::string& text) {
  return str("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" text-anchor=\"", anchor, "\">", escape_html(text),
             "</text>\n");
}

std::string svg_line(const std::string& path, const std::string& color, const std::string& style) {
  return str("<path d=\"", path, "\" fill=\"none\" stroke=\"", color, "\"", style.empty() ? "" : " ", style, "/>\n");
}

std::string svg_document(double width, double height, const std::string& content) {
  const std::string w = fixed(width, 0), h = fixed(height, 0);
  return str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h, "\" viewBox=\"0 0 ", w, " ", h,
             "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"", w, "\" height=\"", h,
             "\" fill=\"white\"/>\n", content, "</svg>\n");
}

}  // namespace mcpp
