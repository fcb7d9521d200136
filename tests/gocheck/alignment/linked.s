// Lets kubelet.go declare a function that is written elsewhere.
