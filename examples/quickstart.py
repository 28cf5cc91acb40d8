import wholegrain as wg

visits = wg.clinics(patients=3000, clinics=8, span=3)  # synthetic; each patient visits up to 3 of 8 clinics
run = wg.train(
    visits,
    policy=wg.subject_dp(rate=1.0),
    epsilon=4,
    span=3,
    rounds={"count": 30, "learning_rate": 3.0, "averaging": "subjects"},
)
print(run.guarantee)
print(f"accuracy on patients never seen: {run.accuracy:.1%}")
