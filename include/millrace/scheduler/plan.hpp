// The whole of plan in one include: generate, verify, lower, simulate, search, draw. Needs the
// target millrace::plan alone.
#pragma once

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/rank_traces.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/shape.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/plan/sweep.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
