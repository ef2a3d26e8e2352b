// The options of a test that trains a model: the pipeline's next to the trainer's.
#pragma once

#include "millrace/training/trainer.hpp"

namespace millrace {

struct TestOptions : TrainerOptions {
  PipelineOptions pipeline = {};
};

inline Trainer trainer_of(const ModelSpec& model, const TestOptions& options) {
  return Trainer(model, options.pipeline, options);
}

}  // namespace millrace
