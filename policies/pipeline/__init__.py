"""Pipeline schedules as pure data: which rank runs what, in which order.

    registry            generate("1f1b", ranks=4, micro_batches=8)    a `Schedule`: one program a rank
    pipeline_schedule   Schedule, Action, with_recompute              what programs are made of
    validate            validate(schedule)                            nothing, or why it is no schedule
    evaluate            evaluate(schedule, StageTimes(...))           exact start and end of everything
                        peak_activations(schedule)                    activations alive on each rank
                        closed_form("1f1b", ...)                      what the textbook says
    custom              picture(schedule)                             rank × time, in text
                        to_csv(schedule), parse_csv(text)             torch.distributed.pipelining's form

Nothing here has a clock or a device, and nothing is simulated: the simulator issues the programs in
order and has to come to the same times as `evaluate`.
"""
