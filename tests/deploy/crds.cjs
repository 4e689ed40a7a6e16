// Reads manifests as JSON lines, writes for each what its CRD's schema says against it: a JSON string, "" for nothing.
// node crds.cjs DIRECTORY-OF-@kubernetes-models
const path = require("node:path");
const readline = require("node:readline");

const root = path.resolve(process.argv[2]);
const models = {
  "gateway.networking.k8s.io/v1": "gateway-api/gateway.networking.k8s.io/v1/index.js",
  "keda.sh/v1alpha1": "keda/keda.sh/v1alpha1/index.js",
  "monitoring.coreos.com/v1": "prometheus-operator/monitoring.coreos.com/v1/index.js",
};

function complaint(manifest) {
  const file = models[manifest.apiVersion];
  if (!file) return `unknown ${manifest.apiVersion}`;
  const Model = require(path.join(root, file))[manifest.kind];
  if (!Model) return `unknown ${manifest.kind}`;
  try {
    new Model(manifest).validate();
    return "";
  } catch (error) {
    return String(error.message || error);
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  process.stdout.write(JSON.stringify(complaint(JSON.parse(line))) + "\n");
});
