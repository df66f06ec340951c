"""Logs to MLflow with its functions and with its client."""

import mlflow
from mlflow.tracking import MlflowClient
from tracker_watch import train

mlflow.set_experiment("e")
found = mlflow.get_experiment_by_name("e")
print("experiment", found.experiment_id if found else mlflow.create_experiment("e"))
client = MlflowClient()
with mlflow.start_run(run_name="r") as run:
    mlflow.log_params({"lr": 1e-3})
    mlflow.set_tag("k", "v")

    def log(step, loss):
        mlflow.log_metric("loss", loss, step=step)
        if step % 100 == 0:
            client.log_metric(run.info.run_id, "other", loss)
            mlflow.log_text("text", "notes.txt")

    train(log)
    mlflow.log_artifact(__file__)
print(mlflow.active_run())
