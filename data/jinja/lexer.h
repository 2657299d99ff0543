// Division of templates into tokens.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp::jinja {

enum class TokenKind : u8 {
  Text,         ///< text outside of tags
  BeginOutput,  ///< {{
  EndOutput,    ///< }}
  BeginBlock,   ///< {%
  EndBlock,     ///< %}
  Name,
  String,  ///< content without quotes, with escapes replaced
  Integer,
  Float,
  Operator,
  End
};

struct Token {
  TokenKind kind = TokenKind::End;
  std::string text;
  i64 line = 1;
};

/// Returns the tokens of a template, ending with TokenKind::End. Line ends after blocks and blanks before them are
/// removed, as with Jinja's trim_blocks and lstrip_blocks, which chat templates are written for. Throws BadInput, with
/// the line, for unfinished tags and unknown characters.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace mcpp::jinja
