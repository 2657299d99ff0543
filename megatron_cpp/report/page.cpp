#include "megatron_cpp/report/page.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace mcpp {
namespace {

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    if (c == '&')
      html += "&amp;";
    else if (c == '<')
      html += "&lt;";
    else
      html += c;
  }
  return html;
}

std::string concatenate_files(std::string_view extension) {
  std::string text;
  for (const EmbeddedFile& file : report_page_files())
    if (file.name.ends_with(extension)) text += file.content;
  return text;
}

/// Returns `page` with every {{name}} replaced by its part. Inserted text is not expanded, since it is untrusted.
std::string fill_template(std::string_view page, const std::map<std::string, std::string, std::less<>>& parts) {
  std::string text;
  for (std::size_t at = 0; at < page.size();) {
    const std::size_t begin = std::min(page.find("{{", at), page.size()), end = page.find("}}", begin);
    text += page.substr(at, begin - at);
    if (begin == page.size()) break;
    const auto part = parts.find(page.substr(begin + 2, end - begin - 2));
    MCPP_CHECK(part != parts.end(), "page.html asks for something that nobody gives");
    text += part->second;
    at = end + 2;
  }
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const std::vector<ReportRun>& runs) {
  return fill_template(concatenate_files(".html"), {{"title", escaped(title)},
                                                    {"style", concatenate_files(".css")},
                                                    {"script", concatenate_files(".js")},
                                                    {"data", page_data(title, runs)}});
}

}  // namespace mcpp
