// See sample.hpp.
#include "cli/generate/sample.hpp"

namespace millrace::cli {

std::vector<std::string> continued(Generator& generator,
                                   const Vocabulary& vocabulary,
                                   std::string_view prompt,
                                   Sampling sampling) {
  sampling.words = vocabulary.size();
  std::vector<std::string> texts;
  for (const auto& tokens : generator.generate(vocabulary.encode(prompt), sampling))
    texts.push_back(vocabulary.decode(tokens));
  return texts;
}

std::string plain_prompt(const Vocabulary& vocabulary) {
  return vocabulary.id_of('\n') >= 0 ? "\n" : vocabulary.bytes().substr(0, 1);
}

}  // namespace millrace::cli
