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
#include "millrace/training/checks.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/launch.hpp"
#include "millrace/transport/process_group.hpp"
