# Generates a schedule, verifies it, times it and draws it.
import millrace

plan = millrace.generate("zb-v", ranks=4, micro_batches=8)
assert plan.verify(transport=1) == []                       # correct, cannot deadlock
report = plan.simulate(costs={"forward": 1, "weight": 0.5})
print(report.makespan, report.bubble_makespan)              # prints "21.5 1.5"
open("plan.svg", "w").write(plan.svg())
