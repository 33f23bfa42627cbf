"""check_kubernetes.py RENDERED.yaml...: what schemas do not know of rendered manifests.

Every SLUICE_ variable is an option of the servers (deploy/sluice.toml lists them); what a process is given to drain
ends before Kubernetes kills it; probes and policies name ports and services that there are; the NetworkPolicies leave workers' and
internal ports to Sluice; autoscalers ask for a metric that the servers have. Writes RENDERED.yaml.core without the
kinds that are not Kubernetes' own.
"""

import pathlib
import re
import sys

import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = set(re.findall(r"\bSLUICE_[A-Z_]+\b", (TOP / "deploy/sluice.toml").read_text()))
METRICS = "".join(path.read_text() for path in (TOP / "common/metrics").glob("*.cc"))
SOURCES = "".join(path.read_text() for role in ("router", "prefill_server", "decode_server")
                  for path in (TOP / role).glob("*.cc"))
POD_KINDS = ("Deployment", "StatefulSet")
OWN = {"sluice-router", "sluice-prefill", "sluice-decode"}


def check_pod(name, spec, config, say):
    """spec: of a pod; config: the variables of its ConfigMap."""
    (container,) = spec["containers"]
    env = dict(config)
    env.update({each["name"]: each.get("value") for each in container["env"]})
    for key in env:
        if key.startswith("SLUICE_") and key not in OPTIONS:
            say(f"{name}: {key} is no option of deploy/sluice.toml")
    before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    needed = int(before[1]) + int(env["SLUICE_STOP_TIMEOUT"])
    if not needed < spec["terminationGracePeriodSeconds"] <= needed + 30:
        say(f"{name}: drains for {needed} s, terminationGracePeriodSeconds is {spec['terminationGracePeriodSeconds']}")
    ports = {port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if container[probe]["grpc"]["port"] not in ports:
            say(f"{name}: {probe} asks a port that is not there")
        if f'"{container[probe]["grpc"].get("service", "")}"' not in SOURCES:
            say(f"{name}: no server announces the service of {probe}")
    for key in ("SLUICE_LISTEN", "SLUICE_METRICS_LISTEN", "SLUICE_INTERNAL_LISTEN", "SLUICE_HTTP_LISTEN"):
        if key in env and key in (["SLUICE_INTERNAL_LISTEN"] if name != "sluice-router" else []):
            say(f"{name}: {key} is the router's")
        elif key in env and int(env[key].rsplit(":", 1)[1]) not in ports:
            say(f"{name}: {key} {env[key]} is no port of the container")


def selected(selector, labels):
    """Whether a label selector takes these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []))


def check_policies(pods, policies, say):
    """pods: (labels, port names); internal ports are open to Sluice's own pods only."""
    for labels, ports in pods:
        mine = [policy for policy in policies if selected(policy["podSelector"], labels)]
        if not mine:
            say(f"{labels}: no NetworkPolicy")
        for policy in mine:
            for rule in policy.get("ingress", []):
                open_ports = {port["port"] for port in rule.get("ports", [])} or set(ports)
                if not open_ports <= set(ports):
                    say(f"{labels}: a NetworkPolicy opens {open_ports - set(ports)}, which is no port")
                own = rule.get("from") and all(
                    any(selected(source["podSelector"], {**labels, "app.kubernetes.io/name": name}) for name in OWN)
                    and "namespaceSelector" not in source
                    for source in rule["from"]
                    if "podSelector" in source
                ) and all("podSelector" in source for source in rule["from"])
                if "internal" in open_ports and not own:
                    say(f"{labels}: a NetworkPolicy opens the internal port to others: {rule}")


def check(path):
    faults = []
    say = faults.append
    objects = [each for each in yaml.safe_load_all(path.read_text()) if each]
    config = {}
    for each in objects:
        if each["kind"] != "Namespace" and each["metadata"].get("namespace") != "sluice":
            say(f"{each['kind']} {each['metadata']['name']} is not in the namespace sluice")
        if each["kind"] == "ConfigMap":
            config.update(each["data"])
    pods = []
    names = set()
    for each in objects:
        name = each["metadata"]["name"]
        if each["kind"] in POD_KINDS:
            template = each["spec"]["template"]
            names.add(name)
            check_pod(name, template["spec"], config, say)
            ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
            pods.append((template["metadata"]["labels"], ports))
        if each["kind"] == "HorizontalPodAutoscaler":
            for metric in each["spec"]["metrics"]:
                asked = metric["pods"]["metric"]
                stages = re.findall(r'InFlight\(registry, "(\w+)"\)', METRICS)
                if f'"{asked["name"]}"' not in METRICS or asked["selector"]["matchLabels"]["stage"] not in stages:
                    say(f"{name}: the servers have no metric {asked}")
    for each in objects:
        if each["kind"] == "Service" and not any(selected({"matchLabels": each["spec"]["selector"]}, labels)
                                                 for labels, _ in pods):
            say(f"Service {each['metadata']['name']} finds no pod")
    if names != OWN:
        say(f"want {OWN}, got {names}")
    check_policies(pods, [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"], say)
    core = [each for each in objects if each["kind"] != "ServiceMonitor"]
    path.with_suffix(".yaml.core").write_text(yaml.safe_dump_all(core))
    return [f"{path.name}: {fault}" for fault in faults]


def main():
    faults = [fault for name in sys.argv[1:] for fault in check(pathlib.Path(name))]
    print("\n".join(faults) or f"{len(sys.argv) - 1} overlays: as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
