// Everything in one include: plan, stages, transport, executors, training. Needs
// millrace::millrace; join_launch also the component launch.
#pragma once

#include "millrace/scheduler/plan.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/stages/stage.hpp"
#include "millrace/training/build_fields.hpp"
#include "millrace/training/gradient_check.hpp"
#include "millrace/training/rank_parts.hpp"
#include "millrace/training/run_page.hpp"
#include "millrace/training/sequential_check.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/process_group.hpp"
